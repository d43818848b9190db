"""Files and locks, arrays, progress, configuration and plugins: what every package needs. Imports only `errors`."""
