"""Tables and the HTML report, from a store.

`fedcohort.report.summary` needs NumPy alone, and so do CSV files (`fedcohort.report.export`); the
table needs rich (`fedcohort.report.table`), the HTML report jinja2
(`fedcohort.report.html`): each is imported by name. The figures of one paper are beside its study.
"""

from fedcohort.report.summary import Summary, summarise, to_json

__all__ = ["Summary", "summarise", "to_json"]
