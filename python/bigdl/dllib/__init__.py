"""BigDL's library: what of it Orca scripts use."""
