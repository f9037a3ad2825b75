import NIOHTTP1

@testable import HTTPConnection

/// Whatever bytes a peer sends, in whatever pieces: only well-formed POSTs of bearable size with one framing are handed
/// on, each once; no request has two answers; what isn't HTTP ends the connection.
enum HTTPProperties {
    static func check(_ input: [UInt8]) {
        let script = ConnectionScript(input)
        let strict = StrictRequest.all(in: script.bytes)
        guard let given = run(script.steps, strict), script.isPlain, script.bytes.count > 1 else { return }
        let pieces: [ConnectionScript.Step] = [.read(script.bytes.prefix(1)), .read(script.bytes.dropFirst())]
        guard let whole = run([.read(script.bytes[...])], strict),
            let cut = script.steps.count > 1 ? given : run(pieces, strict)
        else { return }
        require(whole.bodies == cut.bodies, "it doesn't matter to the intake how the bytes are cut")
        // Where a connection is closed without a word, what was written before in the same turn isn't sent. A head that is
        // too large and malformed as well is one or the other, whatever the decoder sees first.
        let statuses = (cut.statuses.map { $0 == 431 ? 400 : $0 }, whole.statuses.map { $0 == 431 ? 400 : $0 })
        require(statuses.0.starts(with: statuses.1), "it doesn't matter to the peer how the bytes are cut")
    }

    private static func run(
        _ steps: [ConnectionScript.Step],
        _ strict: [StrictRequest]
    ) -> (bodies: [[UInt8]], statuses: [Int])? {
        guard let connection = try? FuzzedConnection() else { return nil }
        for step in steps where connection.isOpen { connection.follow(step) }
        if connection.isOpen { connection.settle() }
        for (number, body) in connection.bodies {
            require(strict.count > number, "what is handed on is a request to a strict reader as well")
            require(strict[number].body == body, "a strict reader finds the same body")
            require(strict[number].method.elementsEqual("POST".utf8), "a strict reader finds a POST")
            check(connection.decoded.heads[number], body)
        }
        let answers = check(connection)
        connection.end()
        return (connection.bodies.map(\.body), answers.statuses)
    }

    private static func check(_ head: HTTPRequestHead, _ body: [UInt8]) {
        let lengths = head.headers[canonicalForm: "content-length"]
        let codings = head.headers[canonicalForm: "transfer-encoding"]
        require(head.method == .POST, "only a POST is handed on")
        require(head.version.major == 1 && head.version.minor <= 1, "only HTTP/1 is handed on")
        require(lengths.count + codings.count <= 1, "what is handed on has one framing")
        require(body.count <= FuzzedConnection.limits.bodyBytes, "what is handed on has a bearable size")
        if let length = lengths.first {
            require(Int(length) == body.count, "a body is as long as announced")
        } else if codings.isEmpty {
            require(body.isEmpty, "without a framing there is no body")
        }
        require(head.headers["host"].count == 1 || head.version.minor == 0, "what is handed on names one host")
        require(head.headers.count <= FuzzedConnection.limits.headerFields, "a head has no more fields than its limit")
        let size = head.headers.reduce(head.uri.utf8.count) { $0 + $1.name.utf8.count + $1.value.utf8.count }
        // A byte that isn't UTF-8 became three that are.
        require(size <= FuzzedConnection.limits.headBytes * 3, "a head is no larger than its limit")
    }

    private static func check(_ connection: FuzzedConnection) -> SentAnswers {
        let methods = connection.methods
        let answers = SentAnswers(connection.socket.sent, methods: methods)
        // One more may have come that was neither decoded nor handed on: what isn't HTTP, is late, or is too late.
        let isHeadless = connection.decoded.failed || connection.timesPassed > 0 || connection.isDraining
        require(
            answers.statuses.count <= methods.count + (isHeadless ? 1 : 0),
            "there are no more answers than requests"
        )
        require(answers.interims <= methods.count, "a body is asked for once")
        if connection.decoded.failed || answers.saysClose {
            require(connection.socket.isOutputClosed, "what isn't HTTP, or is the last, ends the connection")
        }
        if connection.isOpen {
            require(answers.statuses.count >= connection.bodies.count, "what was handed on has an answer")
        }
        return answers
    }
}
