"""What must be known of ATen's operators: result types, properties, positions and their bounds."""
