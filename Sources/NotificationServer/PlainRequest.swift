/// A notification's request as nearly every sender and proxy sends it: a POST to the endpoint with one Content-Length and
/// nothing about it that has to be weighed, all of it in one read.
///
/// Such a request needs no general decoder, which would make strings of its head: a tenth of what a notification takes of
/// the daemon. Whatever is not quite of this form, or not there as a whole, is left to the decoder. So nothing is refused
/// here, and what is taken here is what the decoder and ``RequestInspection`` would take, to the byte (RFC 9112 §2 to §6).
struct PlainRequest: Equatable {
    /// The head's length in bytes, with the empty line; the body lies behind it.
    let headLength: Int
    /// The body's length in bytes.
    let bodyLength: Int

    /// Tells these requests from all others.
    struct Form: Sendable {
        private let requestLine: [UInt8]
        private let bodyLimit: Int
        private let headLimit: Int
        private let fieldLimit: Int

        init(path: String, limits: ServerLimits) {
            requestLine = Array("POST \(path) HTTP/1.1\r\n".utf8)
            bodyLimit = limits.bodyBytes
            headLimit = limits.headBytes
            fieldLimit = limits.headerFields
        }

        /// The request that the bytes begin with; `nil`: it isn't of this form, or not all of it is there.
        func request(in bytes: Span<UInt8>) -> PlainRequest? {
            guard bytes.begins(with: requestLine) else { return nil }
            var fields = Fields()
            var position = requestLine.count
            var count = 0
            while let field = Field(in: bytes, at: position) {
                count += 1
                guard count <= fieldLimit, fields.take(field, of: bytes) else { return nil }
                position = field.end
            }
            guard bytes.hasLineEnd(at: position) else { return nil }
            let headLength = position + 2
            guard headLength <= headLimit, fields.namesHost,
                let bodyLength = fields.contentLength, bodyLength <= bodyLimit,
                bytes.count - headLength >= bodyLength
            else { return nil }
            return PlainRequest(headLength: headLength, bodyLength: bodyLength)
        }
    }
}

extension PlainRequest {
    /// Where a field and its value lie, and where the next begins.
    private struct Field {
        let name: Range<Int>
        /// Without the blanks and tabs before it. Those behind it stay: where they decide, the decoder shall.
        let value: Range<Int>
        let end: Int

        /// `nil`: no field begins here that is well-formed beyond doubt.
        init?(in bytes: Span<UInt8>, at start: Int) {
            var position = start
            while position < bytes.count, bytes[position].isTokenCharacter { position += 1 }
            guard position > start, position < bytes.count, bytes[position] == UInt8(ascii: ":") else { return nil }
            name = start..<position
            position += 1
            while position < bytes.count, bytes[position].isBlank { position += 1 }
            let valueStart = position
            while position < bytes.count, bytes[position].isPlainText { position += 1 }
            guard bytes.hasLineEnd(at: position) else { return nil }
            value = valueStart..<position
            end = position + 2
        }
    }

    /// What the fields say that decide.
    private struct Fields {
        var contentLength: Int?
        var namesHost = false
        private var namesConnection = false

        /// False: the field has to be weighed.
        mutating func take(_ field: Field, of bytes: Span<UInt8>) -> Bool {
            // The length of a name tells the few that matter from all others.
            switch field.name.count {
            case 4 where bytes.equals("host", at: field.name):
                guard !namesHost else { return false }
                namesHost = true
            case 10 where bytes.equals("connection", at: field.name):
                guard !namesConnection, bytes.equals("keep-alive", at: field.value) else { return false }
                namesConnection = true
            case 14 where bytes.equals("content-length", at: field.name):
                guard contentLength == nil, let length = Self.length(bytes.extracting(field.value)) else {
                    return false
                }
                contentLength = length
            case 6 where bytes.equals("expect", at: field.name),
                7 where bytes.equals("upgrade", at: field.name),
                16 where bytes.equals("content-encoding", at: field.name),
                16 where bytes.equals("proxy-connection", at: field.name),
                17 where bytes.equals("transfer-encoding", at: field.name):
                return false
            default:
                break
            }
            return true
        }

        /// As many digits as any length has that is taken.
        private static func length(_ text: Span<UInt8>) -> Int? {
            guard 1...9 ~= text.count else { return nil }
            var length = 0
            for index in text.indices {
                guard 0x30...0x39 ~= text[index] else { return nil }
                length = length * 10 + Int(text[index] - 0x30)
            }
            return length
        }
    }
}

extension Span<UInt8> {
    fileprivate func begins(with prefix: [UInt8]) -> Bool {
        let prefix = prefix.span
        guard count >= prefix.count else { return false }
        for index in prefix.indices where self[index] != prefix[index] { return false }
        return true
    }

    fileprivate func hasLineEnd(at position: Int) -> Bool {
        count - position >= 2 && self[position] == 0x0D && self[position + 1] == 0x0A
    }

    /// Compares with letters in lower case and hyphens, ignoring the case of letters.
    fileprivate func equals(_ lowercase: StaticString, at range: Range<Int>) -> Bool {
        guard range.count == lowercase.utf8CodeUnitCount else { return false }
        return lowercase.withUTF8Buffer { wanted in
            for offset in 0..<wanted.count {
                let byte = self[range.lowerBound + offset]
                let folded = 0x41...0x5A ~= byte ? byte | 0x20 : byte
                guard folded == wanted[offset] else { return false }
            }
            return true
        }
    }
}

extension UInt8 {
    /// RFC 9110 §5.6.2, `tchar`.
    fileprivate var isTokenCharacter: Bool {
        let (low, high) = (0x03FF_6CFA_0000_0000 as UInt64, 0x57FF_FFFF_C7FF_FFFE as UInt64)
        return self < 128 && (self < 64 ? low >> self : high >> (self - 64)) & 1 == 1
    }

    fileprivate var isBlank: Bool { self == 0x20 || self == 0x09 }

    /// Visible ASCII, blank and tab.
    fileprivate var isPlainText: Bool { 0x20...0x7E ~= self || self == 0x09 }
}
