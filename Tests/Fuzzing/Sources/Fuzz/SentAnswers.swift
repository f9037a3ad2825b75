/// What a connection sent, read as a client reads it.
struct SentAnswers {
    /// Of the final answers, in their order.
    private(set) var statuses: [Int] = []
    /// How often a client was asked for a body.
    private(set) var interims = 0
    /// The last answer said that it is the last.
    private(set) var saysClose = false

    /// Reads answers to requests of these methods; what is answered without a method is no HEAD.
    init(_ sent: [UInt8], methods: [String]) {
        var rest = sent[...]
        while !rest.isEmpty {
            require(!saysClose, "nothing follows an answer that says it is the last")
            guard let end = rest.firstEnd(of: [13, 10, 13, 10]) else {
                refuse("an answer has a head")
            }
            let lines = String(decoding: rest[..<end], as: UTF8.self).split(separator: "\r\n")
            rest = rest[end...]
            guard let line = lines.first, line.hasPrefix("HTTP/1.1 "), let status = Int(line.dropFirst(9).prefix(3))
            else {
                refuse("an answer has a status")
            }
            if status == 100 {
                interims += 1
                continue
            }
            let length = lines.first { $0.hasPrefix("Content-Length: ") }.flatMap { Int($0.dropFirst(16)) }
            guard let length else { refuse("an answer has a length") }
            let isHEAD = statuses.count < methods.count && methods[statuses.count] == "HEAD"
            require(isHEAD || rest.count >= length, "an answer is sent whole")
            rest = rest.dropFirst(isHEAD ? 0 : length)
            statuses.append(status)
            saysClose = lines.contains("Connection: close")
        }
    }
}

extension ArraySlice<UInt8> {
    /// Where the first occurrence of some bytes ends.
    fileprivate func firstEnd(of bytes: [UInt8]) -> Int? {
        indices.first { self[$0...].starts(with: bytes) }.map { $0 + bytes.count }
    }
}
