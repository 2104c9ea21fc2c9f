from pathlib import Path

from fedcohort.cli.settings_table import settings_page

PAGE = Path(__file__).parents[2] / "docs" / "settings.md"


def test_the_page_of_settings_is_up_to_date():
    made = "python -m fedcohort.cli.settings_table > docs/settings.md"
    assert PAGE.read_text("utf-8") == settings_page(), f"make it anew: {made}"
