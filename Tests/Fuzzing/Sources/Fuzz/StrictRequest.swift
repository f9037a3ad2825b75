/// A request parsed strictly by RFC 9112, as an independent check of where requests begin and end. Of the exceptions that it
/// allows a recipient, two are implemented: line ends before a request, and several spaces in its first line.
struct StrictRequest {
    /// As in the request line.
    var method: [UInt8]
    var target: [UInt8]
    /// Their names in lower case.
    var fields: [(name: String, value: String)]
    var body: [UInt8]

    /// The requests at the beginning of a stream, up to the first incomplete or malformed one.
    static func all(in stream: [UInt8]) -> [StrictRequest] {
        var requests: [StrictRequest] = []
        var reader = Reader(rest: stream[...])
        while let request = reader.request() { requests.append(request) }
        return requests
    }
}

/// Each function consumes the bytes of its result, or returns `nil`.
private struct Reader {
    var rest: ArraySlice<UInt8>

    mutating func request() -> StrictRequest? {
        rest = rest.drop { $0 == 13 || $0 == 10 }
        guard let line = line() else { return nil }
        let parts = line.split(separator: 32)
        guard parts.count == 3, line.first != 32, line.last != 32,
            parts[0].isToken, parts[1].allSatisfy({ 0x21...0x7E ~= $0 }),
            let version = [Array("HTTP/1.0".utf8), Array("HTTP/1.1".utf8)].firstIndex(of: Array(parts[2])),
            let fields = fields()
        else { return nil }
        let lengths = fields.filter { $0.name == "content-length" }.map(\.value)
        let codings = fields.filter { $0.name == "transfer-encoding" }.map(\.value)
        guard lengths.count + codings.count <= 1 else { return nil }
        var body: [UInt8]? = []
        if let coding = codings.first {
            guard version == 1, coding.lowercased() == "chunked" else { return nil }
            body = chunks()
        } else if let length = lengths.first {
            guard !length.isEmpty, length.utf8.allSatisfy({ 0x30...0x39 ~= $0 }), let count = Int(length) else {
                return nil
            }
            body = take(count)
        }
        return body.map { StrictRequest(method: Array(parts[0]), target: Array(parts[1]), fields: fields, body: $0) }
    }

    private mutating func take(_ count: Int) -> [UInt8]? {
        guard rest.count >= count else { return nil }
        defer { rest = rest.dropFirst(count) }
        return Array(rest.prefix(count))
    }

    private mutating func line() -> ArraySlice<UInt8>? {
        guard let end = rest.firstIndex(of: 10), end > rest.startIndex, rest[end - 1] == 13 else { return nil }
        let line = rest[..<(end - 1)]
        rest = rest[(end + 1)...]
        return line.contains(13) ? nil : line
    }

    private mutating func fields() -> [(name: String, value: String)]? {
        var fields: [(name: String, value: String)] = []
        while let line = line() {
            if line.isEmpty { return fields }
            guard let colon = line.firstIndex(of: UInt8(ascii: ":")), line[..<colon].isToken else { return nil }
            let value = line[(colon + 1)...].trimmed
            guard value.allSatisfy(\.isText) else { return nil }
            fields.append(
                (String(decoding: line[..<colon], as: UTF8.self).lowercased(), String(decoding: value, as: UTF8.self))
            )
        }
        return nil
    }

    private mutating func chunks() -> [UInt8]? {
        var body: [UInt8] = []
        while let line = line() {
            let digits = line.prefix(while: \.isHexDigit)
            let rest = line.dropFirst(digits.count).trimmed
            guard let size = Int(String(decoding: digits, as: UTF8.self), radix: 16),
                rest.first ?? UInt8(ascii: ";") == UInt8(ascii: ";"), rest.allSatisfy(\.isText)
            else { return nil }
            if size == 0 { return fields().map { _ in body } }
            guard let chunk = take(size), take(2) == [13, 10] else { return nil }
            body += chunk
        }
        return nil
    }
}

extension ArraySlice<UInt8> {
    fileprivate var isToken: Bool { !isEmpty && allSatisfy(\.isTokenCharacter) }

    fileprivate var trimmed: ArraySlice<UInt8> {
        var slice = drop { $0 == 9 || $0 == 32 }
        while slice.last == 9 || slice.last == 32 { slice.removeLast() }
        return slice
    }
}

extension UInt8 {
    fileprivate var isHexDigit: Bool {
        0x30...0x39 ~= self || 0x41...0x46 ~= self || 0x61...0x66 ~= self
    }

    fileprivate var isTokenCharacter: Bool {
        0x30...0x39 ~= self || 0x41...0x5A ~= self || 0x61...0x7A ~= self || "!#$%&'*+-.^_`|~".utf8.contains(self)
    }

    /// VCHAR, obs-text, space and tab.
    fileprivate var isText: Bool { self == 9 || 0x20...0x7E ~= self || self >= 0x80 }
}
