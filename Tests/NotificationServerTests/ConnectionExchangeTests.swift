import AppleTokens
import Ingest
import NIOCore
import Testing

@testable import NotificationServer

@Suite("The exchange of one connection")
struct ConnectionExchangeTests {
    private let start = NIODeadline.uptimeNanoseconds(1_000_000_000)
    private let limits = ServerLimits()

    private func exchange() -> ConnectionExchange {
        ConnectionExchange(isSecure: false, now: start)
    }

    private func accepted(isLast: Bool = false, expects: Bool = false) -> RequestInspection.Judgement {
        .accepted(.init(contentLength: 1, expectsContinue: expects, isLast: isLast))
    }

    /// Receives a whole request and returns its number.
    private func receive(_ exchange: inout ConnectionExchange, isLast: Bool = false) throws -> UInt64 {
        exchange.bytesArrived(now: start)
        #expect(exchange.headArrived(accepted(isLast: isLast), isHEAD: false, now: start) == .collect)
        #expect(exchange.bodyArrived(1, limit: 1) == .collect)
        let number = exchange.endArrived(now: start)
        return try #require(number)
    }

    private func response(_ outcome: Outcome, isLast: Bool = false, omitsBody: Bool = false)
        -> ConnectionExchange.Writable
    {
        .response(outcome, since: start, omitsBody: omitsBody, isLast: isLast)
    }

    @Test("Responses leave in the order of the requests.")
    func order() throws {
        var exchange = exchange()
        let first = try receive(&exchange)
        let second = try receive(&exchange)
        exchange.submitted(first, ticket: 7, now: start)
        exchange.submitted(second, ticket: 8, now: start)
        exchange.decided(second, .refused(.badSignature))
        #expect(exchange.nextWritable(now: start) == nil)
        exchange.decided(first, .acknowledged)
        #expect(exchange.nextWritable(now: start) == response(.acknowledged))
        #expect(exchange.nextWritable(now: start) == response(.refused(.badSignature)))
        #expect(exchange.nextWritable(now: start) == nil)
        #expect(!exchange.isFinished)
    }

    @Test("An outcome for a request that is not pending is ignored.")
    func unknownNumbers() throws {
        var exchange = exchange()
        let first = try receive(&exchange)
        exchange.decided(first + 1, .acknowledged)
        exchange.decided(first, .acknowledged)
        #expect(exchange.nextWritable(now: start) == response(.acknowledged))
        exchange.decided(first, .refused(.badSignature))
        #expect(exchange.nextWritable(now: start) == nil)
    }

    @Test("After the last request nothing is read, and its response is marked as the last.")
    func lastRequest() throws {
        var exchange = exchange()
        let only = try receive(&exchange, isLast: true)
        #expect(exchange.ignoresInput)
        #expect(exchange.headArrived(accepted(), isHEAD: false, now: start) == .ignore)
        #expect(exchange.parsingFailed(.malformedRequest, now: start) == false)
        exchange.decided(only, .acknowledged)
        #expect(exchange.nextWritable(now: start) == response(.acknowledged, isLast: true))
        #expect(exchange.isFinished)
    }

    @Test("A refused request is answered before its body has arrived, and does not end the connection.")
    func refusedRequest() throws {
        var exchange = exchange()
        #expect(exchange.headArrived(.refused(.notFound, isLast: false), isHEAD: true, now: start) == .respond)
        #expect(exchange.nextWritable(now: start) == response(.protocolError(.notFound), omitsBody: true))
        #expect(exchange.bodyArrived(10, limit: 10) == .ignore)
        #expect(exchange.endArrived(now: start) == nil)
        let next = try receive(&exchange)
        exchange.decided(next, .acknowledged)
        #expect(exchange.nextWritable(now: start) == response(.acknowledged))
    }

    @Test("A refused request with an endless body ends the connection.")
    func refusedEndlessly() {
        var exchange = exchange()
        _ = exchange.headArrived(.refused(.notFound, isLast: false), isHEAD: false, now: start)
        _ = exchange.nextWritable(now: start)
        #expect(exchange.bodyArrived(11, limit: 10) == .close)
    }

    @Test("A body above the limit is answered immediately.")
    func tooLarge() {
        var exchange = exchange()
        _ = exchange.headArrived(accepted(), isHEAD: false, now: start)
        #expect(exchange.bodyArrived(6, limit: 10) == .collect)
        #expect(exchange.bodyArrived(5, limit: 10) == .respond)
        #expect(exchange.nextWritable(now: start) == response(.refused(.bodyTooLarge), isLast: true))
        #expect(exchange.bodyArrived(5, limit: 10) == .ignore)
        #expect(exchange.endArrived(now: start) == nil)
    }

    @Test("A malformed request is answered after the requests before it.")
    func brokenBehindOthers() throws {
        var exchange = exchange()
        let first = try receive(&exchange)
        exchange.submitted(first, ticket: 1, now: start)
        #expect(exchange.headArrived(.broken(.malformedRequest), isHEAD: false, now: start) == .respond)
        #expect(exchange.nextWritable(now: start) == nil)
        exchange.decided(first, .acknowledged)
        #expect(exchange.nextWritable(now: start) == response(.acknowledged))
        #expect(exchange.nextWritable(now: start) == response(.protocolError(.malformedRequest), isLast: true))
    }

    @Test("100 Continue is sent once, after the responses to earlier requests.")
    func interim() throws {
        var exchange = exchange()
        let first = try receive(&exchange)
        exchange.submitted(first, ticket: 1, now: start)
        _ = exchange.headArrived(accepted(expects: true), isHEAD: false, now: start)
        #expect(exchange.nextWritable(now: start) == nil)
        exchange.decided(first, .acknowledged)
        #expect(exchange.nextWritable(now: start) == response(.acknowledged))
        #expect(exchange.nextWritable(now: start) == .interim)
        #expect(exchange.nextWritable(now: start) == nil)
    }

    @Test("Draining answers pending requests and refuses later ones.")
    func draining() throws {
        var idle = exchange()
        #expect(idle.drainingBegan() == .finish)
        #expect(idle.isFinished)
        var handshaking = ConnectionExchange(isSecure: true, now: start)
        #expect(handshaking.drainingBegan() == .close)

        var exchange = exchange()
        let first = try receive(&exchange)
        exchange.submitted(first, ticket: 1, now: start)
        #expect(exchange.drainingBegan() == .respond)
        #expect(exchange.headArrived(accepted(), isHEAD: false, now: start) == .respond)
        exchange.decided(first, .acknowledged)
        #expect(exchange.nextWritable(now: start) == response(.acknowledged))
        let refusal = Outcome.unavailable(.shuttingDown, retryAfterSeconds: 5)
        #expect(exchange.nextWritable(now: start) == response(refusal, isLast: true))
        #expect(exchange.isFinished)

        var single = self.exchange()
        let only = try receive(&single)
        _ = single.drainingBegan()
        single.decided(only, .acknowledged)
        #expect(single.nextWritable(now: start) == response(.acknowledged, isLast: true))
        #expect(single.isFinished)
    }

    @Test("A shutdown does not wait for a client that only sent the rest of a refused request.")
    func drainingWhileSkipping() {
        var exchange = exchange()
        #expect(exchange.headArrived(.refused(.notFound, isLast: false), isHEAD: false, now: start) == .respond)
        #expect(exchange.nextWritable(now: start) == response(.protocolError(.notFound)))
        #expect(exchange.drainingBegan() == .respond)
        #expect(exchange.endArrived(now: start) == nil)
        #expect(exchange.timePassed(now: start, limits: limits).finishes)
        #expect(exchange.isFinished)
    }

    @Test(
        "What waits before a refused request is answered, although the rest of its body is late or too long.",
        arguments: [true, false]
    )
    func skippingWithPending(isLate: Bool) throws {
        var exchange = exchange()
        let first = try receive(&exchange)
        exchange.submitted(first, ticket: 1, now: start)
        #expect(exchange.headArrived(.refused(.notFound, isLast: false), isHEAD: false, now: start) == .respond)
        if isLate {
            let late = start + limits.bodyDeadline
            #expect(exchange.timePassed(now: late, limits: limits) == ConnectionExchange.Overdue())
        } else {
            #expect(exchange.bodyArrived(limits.bodyBytes + 1, limit: limits.bodyBytes) == .ignore)
        }
        #expect(exchange.ignoresInput && !exchange.isFinished)
        exchange.decided(first, .acknowledged)
        #expect(exchange.nextWritable(now: start) == response(.acknowledged))
        #expect(exchange.nextWritable(now: start) == response(.protocolError(.notFound), isLast: true))
        #expect(exchange.isFinished)
    }

    @Test("Deadlines for the peer do not run while reading is paused because many requests are pending.")
    func pausedReading() throws {
        var exchange = exchange()
        for ticket in 0..<limits.pipelined {
            exchange.submitted(try receive(&exchange), ticket: UInt64(ticket), now: start)
        }
        exchange.bytesArrived(now: start)
        let paused = start + limits.headDeadline
        #expect(exchange.timePassed(now: paused, limits: limits) == ConnectionExchange.Overdue())
        for number in 0..<limits.pipelined { exchange.decided(UInt64(number), .acknowledged) }
        while exchange.nextWritable(now: paused) != nil {}
        let almost = paused + limits.headDeadline - .nanoseconds(1)
        #expect(exchange.timePassed(now: almost, limits: limits) == ConnectionExchange.Overdue())
        #expect(exchange.timePassed(now: paused + limits.headDeadline, limits: limits).responds)
    }

    @Test("Requests above the maximum are ignored, and the last response before them is marked as the last.")
    func tooManyAtOnce() throws {
        var exchange = exchange()
        for _ in 0..<ConnectionExchange.maximumPending {
            #expect(exchange.headArrived(.refused(.notFound, isLast: false), isHEAD: false, now: start) == .respond)
            #expect(exchange.endArrived(now: start) == nil)
        }
        #expect(exchange.headArrived(accepted(), isHEAD: false, now: start) == .ignore)
        #expect(exchange.ignoresInput)
        var last: ConnectionExchange.Writable?
        while let writable = exchange.nextWritable(now: start) { last = writable }
        #expect(last == response(.protocolError(.notFound), isLast: true))
    }

    @Test("Each deadline counts from its own event.")
    func deadlines() throws {
        func passes(_ exchange: ConnectionExchange, _ time: TimeAmount) -> ConnectionExchange.Overdue {
            var exchange = exchange
            let before = exchange.timePassed(now: start + time - .nanoseconds(1), limits: limits)
            #expect(before == ConnectionExchange.Overdue())
            return exchange.timePassed(now: start + time, limits: limits)
        }
        #expect(passes(exchange(), limits.idleDeadline).finishes)
        #expect(passes(ConnectionExchange(isSecure: true, now: start), limits.headDeadline).closes)

        var head = exchange()
        head.bytesArrived(now: start)
        #expect(passes(head, limits.headDeadline).responds)

        var body = exchange()
        _ = body.headArrived(accepted(), isHEAD: false, now: start)
        #expect(passes(body, limits.bodyDeadline).responds)

        var skipping = exchange()
        _ = skipping.headArrived(.refused(.notFound, isLast: false), isHEAD: false, now: start)
        _ = skipping.nextWritable(now: start)
        #expect(passes(skipping, limits.bodyDeadline).finishes)

        var waiting = exchange()
        waiting.submitted(try receive(&waiting), ticket: 9, now: start)
        #expect(passes(waiting, limits.responseDeadline).abandoned == [9])

        var lingering = exchange()
        lingering.lingeringBegan(now: start)
        #expect(passes(lingering, limits.lingerDeadline).closes)
    }

    @Test("Silent connections are closed before active ones, waiting ones last, and older ones first.")
    func evictionPriority() throws {
        let later = start + .milliseconds(1)
        let now = later + ConnectionExchange.grace
        let silent = exchange()
        let youngSilent = ConnectionExchange(isSecure: false, now: later)
        var sending = exchange()
        sending.bytesArrived(now: start)
        var youngSending = exchange()
        _ = youngSending.headArrived(accepted(), isHEAD: false, now: later)
        let newcomer = ConnectionExchange(isSecure: true, now: now)
        var waiting = exchange()
        waiting.submitted(try receive(&waiting), ticket: 1, now: start)
        let ranked = [silent, youngSilent, sending, youngSending, newcomer, waiting].map {
            $0.evictionPriority(now: now)
        }
        for (less, more) in zip(ranked, ranked.dropFirst()) {
            #expect(less < more)
        }
        #expect(waiting.evictionPriority(now: now) == .waiting)
    }

    @Test("A peer that has closed its sending side receives the pending responses.")
    func peerFinished() throws {
        var idle = exchange()
        #expect(idle.peerFinished(now: start) == .close)

        var waiting = exchange()
        let first = try receive(&waiting)
        waiting.submitted(first, ticket: 1, now: start)
        #expect(waiting.peerFinished(now: start) == .respond)
        waiting.decided(first, .acknowledged)
        #expect(waiting.nextWritable(now: start) == response(.acknowledged, isLast: true))

        var cutShort = exchange()
        _ = cutShort.headArrived(accepted(), isHEAD: false, now: start)
        #expect(cutShort.peerFinished(now: start) == .respond)
        #expect(cutShort.nextWritable(now: start) == response(.protocolError(.malformedRequest), isLast: true))

        var lingering = exchange()
        lingering.lingeringBegan(now: start)
        #expect(lingering.peerFinished(now: start) == .close)
    }

    @Test("A closed connection returns its tickets and accepts nothing more.")
    func closed() throws {
        var exchange = exchange()
        for ticket in [7, 8] as [UInt64] {
            exchange.submitted(try receive(&exchange), ticket: ticket, now: start)
        }
        #expect(exchange.closed() == [7, 8])
        #expect(exchange.closed() == [])
        #expect(exchange.headArrived(accepted(), isHEAD: false, now: start) == .ignore)
        #expect(exchange.nextWritable(now: start) == nil)
    }
}
