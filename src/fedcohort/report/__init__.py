"""Tables, figures and the HTML report, from a store.

`fedcohort.report.summary` needs NumPy alone; the table needs rich (`fedcohort.report.table`), the
HTML report plotly and jinja2 (`fedcohort.report.html`), the figures matplotlib
(`fedcohort.report.figures`): each is imported by name.
"""

from fedcohort.report.summary import Summary, summarise, to_json

__all__ = ["Summary", "summarise", "to_json"]
