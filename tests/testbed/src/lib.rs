//! A real cluster on one machine: the servers, networks and images that the tests and the demo share.
