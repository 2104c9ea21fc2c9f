"""A Flower app whose cohorts are chosen by fedcohort."""
