import pytest

from fedcohort.errors import InvalidParameterError
from fedcohort.specs import parse_spec


@pytest.mark.parametrize(
    ("text", "name", "parameters"),
    [
        ("dp3s", "dp3s", {}),
        (" dp3s : rank = 8 , weights = unbiased ", "dp3s", {"rank": 8, "weights": "unbiased"}),
        ("x:a=1,b=0.5,c=1e-3", "x", {"a": 1, "b": 0.5, "c": 0.001}),
        ("x:a=none,b=True,c=FALSE", "x", {"a": None, "b": True, "c": False}),
        ("x:a=b:c=d", "x", {"a": "b:c=d"}),
        ("x:", "x", {}),
        ("package.module:Rule", "package.module:Rule", {}),
        ("my/rule.py:Rule", "my/rule.py:Rule", {}),
        ("my/rule.py:Rule:beta=0.5", "my/rule.py:Rule", {"beta": 0.5}),
        ("C:\\my\\rule.py:Rule:beta=0.5", "C:\\my\\rule.py:Rule", {"beta": 0.5}),
    ],
)
def test_a_spec_is_a_name_or_a_reference_with_parameters(text, name, parameters):
    found, values = parse_spec(text)
    assert found == name
    assert values == parameters
    assert [type(value) for value in values.values()] == [type(v) for v in parameters.values()]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("x:a=1,b", "'x:a=1,b' has the parameter 'b' without a value"),
        ("x:b,a=1", "'b' without a value"),
        ("x:a=1,a=2", "gives 'a' twice"),
    ],
)
def test_a_damaged_spec_is_named_in_the_complaint(text, complaint):
    with pytest.raises(InvalidParameterError, match=complaint):
        parse_spec(text)
