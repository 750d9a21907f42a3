"""What every exporter of hidden states shares: slots and leases, the slab, the socket that clients talk to."""
