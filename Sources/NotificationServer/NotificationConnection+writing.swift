import NIOCore
import Telemetry

extension NotificationConnection {
    /// Writes every answer whose turn has come. ``flush()`` must follow.
    func writeReady() {
        guard let context else { return }
        let now = NIODeadline.now()
        while let writable = exchange.nextWritable(now: now) {
            needsFlush = true
            switch writable {
            case .interim:
                context.write(Self.wrapOutboundOut(loop.responses.interim), promise: nil)
            case .answer(let outcome, let since, let omitsBody, let isLast):
                let bytes = loop.responses.bytes(outcome, closing: isLast, withoutBody: omitsBody)
                context.write(Self.wrapOutboundOut(bytes), promise: nil)
                loop.metrics.requestDuration.record(Int((now - since).nanoseconds))
                outcome.count(in: loop.metrics)
            }
        }
        adjustFlow()
        if exchange.isFinished {
            needsFlush = true
        }
    }

    /// Does what the exchange says about an end.
    func follow(_ action: ConnectionExchange.EndAction) {
        switch action {
        case .answer:
            writeReady()
            flush()
        case .finish:
            finish()
        case .close:
            close()
        }
    }

    /// Closing a socket with unread input makes the kernel reset the connection, and the peer would lose the answer. So
    /// only the writing side is closed, and the peer gets a moment to close the other.
    func finish() {
        guard let context else { return }
        switch exchange.ending {
        case .lingering:
            return
        case .peerFinished:
            // With the lingering's deadline, since a peer that reads nothing has this wait for ever.
            exchange.lingeringBegan(now: .now())
            let written = context.eventLoop.makePromise(of: Void.self)
            written.futureResult.assumeIsolated().whenComplete { [weak self] _ in self?.close() }
            context.writeAndFlush(Self.wrapOutboundOut(ByteBuffer()), promise: written)
        case .open:
            exchange.lingeringBegan(now: .now())
            gate?.pause(false)
            context.flush()
            context.close(mode: .output, promise: nil)
        }
    }
}
