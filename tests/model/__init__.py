"""The protocol as a Spin model: `python -m tests.model.run` (= `make prove-model`)."""
