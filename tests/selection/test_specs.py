import pytest

from fedcohort.errors import InvalidParameterError
from fedcohort.specs import meaning, parse_spec


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


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("match", "match:", True),
        ("match", " match ", True),
        ("x:a=1,b=c", "x: b=c, a=1", True),
        ("only(match; 3; a)", "only( match: ; 3;a )", True),
        ("x:a=1", "x:a=2", False),
        ("x:a=1", "x", False),
        ("only(match; 3)", "only(match; 4)", False),
        ("only(match; 3)", "always(match; 3)", False),
    ],
)
def test_specs_that_mean_the_same_are_known(one, other, same):
    assert (meaning(one) == meaning(other)) is same
