//! Bootstrap over TCP.
