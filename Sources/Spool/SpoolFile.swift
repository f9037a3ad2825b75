import Basics
import JOSE

/// A request that is acknowledged before the database has it.
package struct SpoolRecord: Sendable, Equatable {
    /// When it was received, in microseconds since 1970.
    package let receivedAt: Int64
    /// The key that verified it at receipt; nil if it was not verified.
    package let keyID: String?
    /// The request's body, or the token alone.
    package let body: [UInt8]

    package init(receivedAt: Int64, keyID: String?, body: [UInt8]) {
        self.receivedAt = receivedAt
        self.keyID = keyID
        self.body = body
    }
}

/// The content of a spool file, a text that people can read too:
///
///     siwad-spool 1
///     jws 1795230329000000 a2lk eyJhbGci….eyJpc3Mi….c2lnbmF0dXJl
///     body 1795230329000512 - eyJwYXlsb2FkIjoi…
///     end 2 3a7bd3e2360a3d29eea436fcfb7e44c735d117c42d1c1835420b6b9942dd4f1b
///
/// A record is its time of receipt, the base64url of the key that verified it or `-`, and the body: a bare token as it is,
/// other bodies as base64url. The last line holds the number of records and the SHA-256 of everything before it, so that a
/// file that was cut or changed is recognised.
enum SpoolFile {
    private static let head = Array("siwad-spool 1\n".utf8)
    private static let space = UInt8(ascii: " ")
    private static let newline = UInt8(ascii: "\n")

    static func encoded(_ records: [SpoolRecord]) -> [UInt8] {
        var bytes: [UInt8] = []
        bytes.reserveCapacity(records.reduce(160) { $0 + $1.body.count * 3 / 2 + 64 })
        bytes += head
        for record in records {
            let isToken = !record.body.isEmpty && record.body.allSatisfy(isTokenByte)
            let keyID = record.keyID.map { Base64URL.encode(Array($0.utf8)) } ?? "-"
            bytes += "\(isToken ? "jws" : "body") \(record.receivedAt) \(keyID) ".utf8
            if isToken {
                bytes += record.body
            } else {
                bytes += Base64URL.encode(record.body).utf8
            }
            bytes.append(newline)
        }
        bytes += "end \(records.count) \(SHA256.digest(bytes.span).hexadecimal)\n".utf8
        return bytes
    }

    /// The records of a file; nil if it is not complete.
    static func decoded(_ bytes: [UInt8]) -> [SpoolRecord]? {
        guard bytes.starts(with: head), bytes.last == newline,
            let end = bytes.dropLast().lastIndex(of: newline)
        else { return nil }
        let content = bytes[...end]
        let trailer = bytes[(end + 1)...].dropLast().split(separator: space, omittingEmptySubsequences: false)
        guard trailer.count == 3, trailer[0].elementsEqual("end".utf8),
            trailer[2].elementsEqual(SHA256.digest(Array(content).span).hexadecimal.utf8)
        else { return nil }
        var records: [SpoolRecord] = []
        for line in content.dropFirst(head.count).split(separator: newline, omittingEmptySubsequences: false).dropLast()
        {
            guard let record = record(line) else { return nil }
            records.append(record)
        }
        return integer(trailer[1]) == Int64(records.count) ? records : nil
    }

    private static func record(_ line: ArraySlice<UInt8>) -> SpoolRecord? {
        let fields = line.split(separator: space, omittingEmptySubsequences: false)
        guard fields.count == 4, let receivedAt = integer(fields[1]) else { return nil }
        var keyID: String?
        if !fields[2].elementsEqual("-".utf8) {
            guard let name = decoded(base64URL: fields[2]), let text = String(validating: name, as: UTF8.self) else {
                return nil
            }
            keyID = text
        }
        if fields[0].elementsEqual("jws".utf8) {
            return SpoolRecord(receivedAt: receivedAt, keyID: keyID, body: Array(fields[3]))
        }
        guard fields[0].elementsEqual("body".utf8), let body = decoded(base64URL: fields[3]) else { return nil }
        return SpoolRecord(receivedAt: receivedAt, keyID: keyID, body: body)
    }

    private static func decoded(base64URL text: ArraySlice<UInt8>) -> [UInt8]? {
        // The cause is not needed: the whole file is set aside.
        try? Base64URL.decode(Array(text).span)
    }

    private static func integer(_ text: ArraySlice<UInt8>) -> Int64? {
        Int64(String(decoding: text, as: UTF8.self))
    }

    private static func isTokenByte(_ byte: UInt8) -> Bool {
        switch byte {
        case UInt8(ascii: "A")...UInt8(ascii: "Z"), UInt8(ascii: "a")...UInt8(ascii: "z"),
            UInt8(ascii: "0")...UInt8(ascii: "9"), UInt8(ascii: "-"), UInt8(ascii: "_"), UInt8(ascii: "."):
            true
        default: false
        }
    }
}
