"""Sources of Programs. `python` captures ordinary PyTorch code with Python control flow."""
