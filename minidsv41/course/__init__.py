"""What the lessons need around the model: checks, faults, figures, widgets, the workbook."""
