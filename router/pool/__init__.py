"""What is known about the engines, and how it is learnt.

    discovery, dns_discovery  which upstreams there are        -> Pool.set_endpoints
    prober                    are they alive, what do they serve -> Pool.probe_*, Pool.learn
    scraper                   how loaded are they              -> Pool.read_page
    events                    who feeds the index with their KV events
    stalls                    does it work on what it has    -> Pool.stands_still, Pool.moves
    monitor                   runs prober and scraper, a task of its own for each upstream
    pool                      holds it all; hands out immutable snapshots

`spec`, `sources`, `ranks`, `health`, `ejection`, `stall`, `reading`, `facts`, `record`, `derived`, `models` and
`describe` are PURE.
"""
