"""What can be replayed: the product's scheduling settings, the field's formulas, and bounds."""
