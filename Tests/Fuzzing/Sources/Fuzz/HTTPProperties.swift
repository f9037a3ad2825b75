import NIOHTTP1

@testable import HTTPConnection

/// For any bytes in any reads: only well-formed POSTs within the limits and with one framing reach the receiver, each once;
/// no request has two responses; bytes that are not HTTP end the connection.
enum HTTPProperties {
    static func check(_ input: [UInt8]) {
        let script = ConnectionScript(input)
        let strict = StrictRequest.all(in: script.bytes)
        guard let given = run(script.steps, strict), script.isPlain, script.bytes.count > 1 else { return }
        let pieces: [ConnectionScript.Step] = [.read(script.bytes.prefix(1)), .read(script.bytes.dropFirst())]
        guard let whole = run([.read(script.bytes[...])], strict),
            let cut = script.steps.count > 1 ? given : run(pieces, strict)
        else { return }
        require(whole.bodies == cut.bodies, "the cuts between reads do not change the bodies")
        // Closing without a response drops bytes that were written but not flushed. A head that is both too large and
        // malformed gets the status of the error that the decoder finds first.
        let statuses = (cut.statuses.map { $0 == 431 ? 400 : $0 }, whole.statuses.map { $0 == 431 ? 400 : $0 })
        require(statuses.0.starts(with: statuses.1), "the cuts between reads do not change the responses")
    }

    private static func run(
        _ steps: [ConnectionScript.Step],
        _ strict: [StrictRequest]
    ) -> (bodies: [[UInt8]], statuses: [Int])? {
        guard let connection = try? FuzzedConnection() else { return nil }
        for step in steps where connection.isOpen { connection.follow(step) }
        if connection.isOpen { connection.settle() }
        for (number, body) in connection.bodies {
            require(strict.count > number, "an accepted request is a request to a strict parser as well")
            require(strict[number].body == body, "a strict parser finds the same body")
            require(strict[number].method.elementsEqual("POST".utf8), "a strict parser finds a POST")
            check(connection.decoded.heads[number], body)
        }
        let answers = check(connection)
        connection.end()
        return (connection.bodies.map(\.body), answers.statuses)
    }

    private static func check(_ head: HTTPRequestHead, _ body: [UInt8]) {
        let lengths = head.headers[canonicalForm: "content-length"]
        let codings = head.headers[canonicalForm: "transfer-encoding"]
        require(head.method == .POST, "only a POST is accepted")
        require(head.version.major == 1 && head.version.minor <= 1, "only HTTP/1 is accepted")
        require(lengths.count + codings.count <= 1, "an accepted request has one framing")
        require(body.count <= FuzzedConnection.limits.bodyBytes, "an accepted body is within its limit")
        if let length = lengths.first {
            require(Int(length) == body.count, "a body is as long as its Content-Length")
        } else if codings.isEmpty {
            require(body.isEmpty, "without a framing there is no body")
        }
        require(head.headers["host"].count == 1 || head.version.minor == 0, "an accepted request has one Host")
        require(head.headers.count <= FuzzedConnection.limits.headerFields, "a head has no more fields than its limit")
        let size = head.headers.reduce(head.uri.utf8.count) { $0 + $1.name.utf8.count + $1.value.utf8.count }
        // A byte that is not UTF-8 is replaced by three bytes.
        require(size <= FuzzedConnection.limits.headBytes * 3, "a head is no larger than its limit")
    }

    private static func check(_ connection: FuzzedConnection) -> SentAnswers {
        let methods = connection.methods
        let answers = SentAnswers(connection.socket.sent, methods: methods)
        // One more response is possible without a decoded head: to bytes that are not HTTP, after a deadline, or while
        // draining.
        let isHeadless = connection.decoded.failed || connection.timesPassed > 0 || connection.isDraining
        require(
            answers.statuses.count <= methods.count + (isHeadless ? 1 : 0),
            "there are no more responses than requests"
        )
        require(answers.interims <= methods.count, "100 Continue is sent once per request")
        if connection.decoded.failed || answers.saysClose {
            require(
                connection.socket.isOutputClosed,
                "bytes that are not HTTP and the last response end the connection"
            )
        }
        if connection.isOpen {
            require(answers.statuses.count >= connection.bodies.count, "every accepted request has a response")
        }
        return answers
    }
}
