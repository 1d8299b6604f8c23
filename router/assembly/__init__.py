"""From settings to what each part is given: values and factories, no part is started here.

`engines`, `clients`, `flow`, `routing` and `shared`, by the side of the router that they are for.
"""
