//! Bootstrap over TCP.
use crate::config::Place;
use crate::{Deadline, Result};
pub struct TcpBootstrap;
impl TcpBootstrap { pub fn join(_: &Place, _: Deadline) -> Result<super::threads::ThreadsBootstrap> { panic!() } }
