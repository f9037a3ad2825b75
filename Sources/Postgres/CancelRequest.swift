import CLibPQ
import Synchronization

/// One request to the server to cancel what a connection is doing, made on a thread of its own: `PQcancel` connects and
/// waits without a deadline.
@safe
final class CancelRequest: Sendable {
    // Used by the one thread that `send` starts, and freed when neither that thread nor the connection refers to this
    // object any more; libpq documents PQcancel as thread-safe.
    private nonisolated(unsafe) let raw: OpaquePointer
    private let finished = Atomic(false)

    private init(_ raw: OpaquePointer) {
        unsafe self.raw = raw
    }

    deinit {
        unsafe PQfreeCancel(raw)
    }

    /// Sends a request for what `handle` is doing, and wakes `thread` when the server has taken it; nil if it could not
    /// even be tried.
    static func send(for handle: borrowing ConnectionHandle, waking thread: ConnectionThread) -> CancelRequest? {
        guard let raw = unsafe handle.makeCancel() else { return nil }
        let request = unsafe CancelRequest(raw)
        let isStarted = startThread {
            request.deliver()
            thread.wake()
        }
        return isStarted ? request : nil
    }

    /// Whether the server has taken the request, or it failed: from here on it cannot hit a later statement.
    var isFinished: Bool { finished.load(ordering: .acquiring) }

    private func deliver() {
        // A request that fails is noticed by the statement's going on until the connection's patience ends.
        unsafe withUnsafeTemporaryAllocation(of: CChar.self, capacity: 256) { message in
            _ = unsafe PQcancel(raw, message.baseAddress, 256)
        }
        finished.store(true, ordering: .releasing)
    }
}
