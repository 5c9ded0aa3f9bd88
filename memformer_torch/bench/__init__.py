"""What things cost: bytes now; operations and seconds are to come."""
