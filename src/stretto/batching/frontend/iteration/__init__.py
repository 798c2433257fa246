"""What loops go through."""
