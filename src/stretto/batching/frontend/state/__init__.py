"""What is known while a function is evaluated: values, an activation, the statements made."""
