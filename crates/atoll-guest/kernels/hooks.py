"""What results look like beyond plain text; loaded into every Python kernel."""
