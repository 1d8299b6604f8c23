"""Laws of scaling, replayed: fleets that grow and shrink under a day of traffic."""
