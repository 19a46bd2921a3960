//! Bootstrap for ranks that are threads of one process.
