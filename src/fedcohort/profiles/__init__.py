"""What a client tells the server about its data, once (PyTorch)."""

from fedcohort.profiles.agreement import OutputGradients, output_gradients
from fedcohort.profiles.fc1 import fc1_profiles
from fedcohort.profiles.gradients import gradient_profiles, representative_gradient_profiles
from fedcohort.profiles.private import private_profiles

__all__ = [
    "OutputGradients",
    "fc1_profiles",
    "gradient_profiles",
    "output_gradients",
    "private_profiles",
    "representative_gradient_profiles",
]
