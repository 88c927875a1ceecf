"""What columns become before a model gets them."""
