import Ingest
import NIOCore

/// The shared state of each event loop, found from any thread and used on its own loop only.
struct NotificationLoops: Sendable {
    private let boxes: [ObjectIdentifier: NIOLoopBoundBox<NotificationLoop?>]

    /// Makes the state of every loop of the group, each on its loop.
    init(
        group: any EventLoopGroup,
        make: @escaping @Sendable (any EventLoop, _ deliver: @escaping @Sendable ([Reply]) -> Void) -> NotificationLoop
    ) async throws {
        var boxes: [ObjectIdentifier: NIOLoopBoundBox<NotificationLoop?>] = [:]
        for eventLoop in group.makeIterator() {
            let box = NIOLoopBoundBox<NotificationLoop?>.makeEmptyBox(eventLoop: eventLoop)
            try await eventLoop.submit {
                box.value = make(eventLoop) { replies in
                    eventLoop.execute { box.value?.deliver(replies) }
                }
            }.get()
            boxes[ObjectIdentifier(eventLoop)] = box
        }
        self.boxes = boxes
    }

    /// The state of a loop; call on it.
    ///
    /// - Throws: `ioOnClosedChannel` for a connection that was accepted while the server ended.
    func state(on eventLoop: any EventLoop) throws -> NotificationLoop {
        guard let box = boxes[ObjectIdentifier(eventLoop)] else {
            preconditionFailure("a connection on an event loop that isn't the server's")
        }
        guard let state = box.value else { throw ChannelError.ioOnClosedChannel }
        return state
    }

    /// Lets go of the state, which holds what delivers to it: by itself it would outlive the server.
    func end() async {
        for box in boxes.values {
            // Fails only when the loops have ended, and then nothing is left to deliver.
            try? await box.eventLoop.submit { box.value = nil }.get()
        }
    }
}
