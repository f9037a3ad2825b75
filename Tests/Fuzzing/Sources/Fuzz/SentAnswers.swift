/// The responses that a connection sent, parsed as by a client.
struct SentAnswers {
    /// The statuses of the final responses in their order.
    private(set) var statuses: [Int] = []
    /// The number of 100 Continue responses.
    private(set) var interims = 0
    /// The last response has Connection: close.
    private(set) var saysClose = false

    /// - Parameter methods: of the requests; a response without a known method is not to HEAD.
    init(_ sent: [UInt8], methods: [String]) {
        var rest = sent[...]
        while !rest.isEmpty {
            require(!saysClose, "nothing follows a response with Connection: close")
            guard let end = rest.firstEnd(of: [13, 10, 13, 10]) else {
                refuse("a response has a head")
            }
            let lines = String(decoding: rest[..<end], as: UTF8.self).split(separator: "\r\n")
            rest = rest[end...]
            guard let line = lines.first, line.hasPrefix("HTTP/1.1 "), let status = Int(line.dropFirst(9).prefix(3))
            else {
                refuse("a response has a status")
            }
            if status == 100 {
                interims += 1
                continue
            }
            let length = lines.first { $0.hasPrefix("Content-Length: ") }.flatMap { Int($0.dropFirst(16)) }
            guard let length else { refuse("a response has a length") }
            let isHEAD = statuses.count < methods.count && methods[statuses.count] == "HEAD"
            require(isHEAD || rest.count >= length, "a response is sent whole")
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
