//! The loop of one node, and the tasks it owns.
