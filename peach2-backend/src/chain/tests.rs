use super::*;
use crate::placement::Memories;

#[test]
fn a_null_head_leads_nowhere_also_on_the_node_whose_number_is_0() {
    let (memory, windows) = (Memories::new(Node(0)), Windows::<()>::new());
    let mut walk = Walk::new(Node(0), &memory, &windows, Address::NULL);
    let expected = ChainError::NoDescriptor { step: 0, at: Address::NULL };
    assert_eq!(walk.next().map(Result::err), Some(Some(expected)));
}
