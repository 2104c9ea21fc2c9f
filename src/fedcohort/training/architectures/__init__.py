"""The models that come with fedcohort, one file per kind."""
