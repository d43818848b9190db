"""`tfa bench scale`: maps past one machine, measured. Vector engines, all datasets as one, Ray, switches, replicas."""
