package import Ingest

/// Where an event loop takes the bodies of its requests. One per event loop; it never leaves it.
package struct LaneInterface {
    /// Takes a body with a ticket. `nil`: the answer comes later, with the same ticket.
    let receive: (_ body: Span<UInt8>, _ ticket: UInt64) -> Answer?

    /// A lane of this function.
    package init(receive: @escaping (_ body: Span<UInt8>, _ ticket: UInt64) -> Answer?) {
        self.receive = receive
    }
}

/// Makes the lane of an event loop; called on it. `deliver` may be called on any thread and takes answers by the batch,
/// each ticket once.
package typealias LaneFactory =
    @Sendable (_ deliver: @escaping @Sendable ([Reply]) -> Void) -> LaneInterface
