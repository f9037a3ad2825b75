import NIOCore
import NIOHTTP1

extension NotificationConnection {
    /// A head came in.
    func received(_ head: HTTPRequestHead) {
        dropUnfinished()
        let judgement = loop.inspection.judge(head)
        switch exchange.headArrived(judgement, isHEAD: head.method == .HEAD, now: .now()) {
        case .collect:
            if case .accepted(let request) = judgement {
                announced = request.contentLength
                if request.expectsContinue {
                    writeReady()
                }
            }
        case .answer:
            writeReady()
        case .ignore:
            break
        }
    }

    /// Part of a body came in.
    func received(_ bytes: ByteBuffer) {
        switch exchange.bodyArrived(bytes.readableBytes, limit: loop.limits.bodyBytes) {
        case .collect:
            collect(bytes)
        case .ignore:
            break
        case .answer:
            dropUnfinished()
            writeReady()
        case .close:
            close()
        }
    }

    /// A body in one piece is used where it lies. Pieces are copied: each may be a slice of a much larger read buffer.
    private func collect(_ bytes: ByteBuffer) {
        if bytes.readableBytes == announced {
            body = bytes
            return
        }
        body.writeImmutableBuffer(bytes)
        keptUnfinished(bytes.readableBytes)
    }

    /// A request has come in whole.
    func receivedEnd() {
        let now = NIODeadline.now()
        guard let sequence = exchange.endArrived(now: now) else { return }
        let ticket = loop.tickets.issue(to: self, sequence: sequence)
        if let answer = loop.lane.receive(body.readableBytesUInt8Span, ticket) {
            loop.tickets.redeem(ticket)
            exchange.decided(sequence, Outcome(answer))
            writeReady()
        } else {
            exchange.submitted(sequence, ticket: ticket, now: now)
            adjustFlow()
        }
        dropUnfinished()
    }

    /// What came in of a request is of no use any more, or isn't unfinished any more.
    func dropUnfinished() {
        body = ByteBuffer()
        announced = nil
        if unfinishedBytes > 0 {
            loop.keptUnfinished(-unfinishedBytes)
            unfinishedBytes = 0
        }
    }

    /// Holds so many bytes more of a request that is still arriving.
    func keptUnfinished(_ count: Int) {
        unfinishedBytes += count
        loop.keptUnfinished(count)
    }

    /// Reads no more while the peer doesn't take its answers, or waits for many.
    func adjustFlow() {
        guard let context, let gate else { return }
        let isFull = exchange.pendingCount >= loop.limits.pipelined || !context.channel.isWritable
        gate.pause(isFull && !exchange.ignoresInput)
    }
}
