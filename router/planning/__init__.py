"""The planner at work: what the router hears becomes plans, plans become metrics, answers and engines."""
