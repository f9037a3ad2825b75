import Testing

@testable import Spool

@Suite("A spool file")
struct SpoolFileTests {
    private let records = [
        SpoolRecord(receivedAt: 1_795_230_329_000_000, keyID: "kid/with spaces\n", body: Array("aaa.bbb.c-_".utf8)),
        SpoolRecord(receivedAt: 0, keyID: nil, body: [0, 10, 32, 255]),
        SpoolRecord(receivedAt: -1, keyID: "", body: []),
    ]

    @Test("Decoding an encoded file gives the same records.")
    func roundTrip() {
        #expect(SpoolFile.decoded(SpoolFile.encoded(records)) == records)
        #expect(SpoolFile.decoded(SpoolFile.encoded([])) == [])
    }

    @Test("A token is written as it is, for people to read.")
    func readable() {
        let text = String(decoding: SpoolFile.encoded(records), as: UTF8.self)
        #expect(text.hasPrefix("siwad-spool 1\njws 1795230329000000 "))
        #expect(text.contains(" aaa.bbb.c-_\n"))
    }

    @Test("A file that is cut anywhere is recognised.")
    func cut() {
        let whole = SpoolFile.encoded(records)
        for length in 0..<whole.count {
            #expect(SpoolFile.decoded(Array(whole.prefix(length))) == nil, "\(length)")
        }
    }

    @Test("A file in which any bit changed is recognised.")
    func changed() {
        let whole = SpoolFile.encoded(records)
        for place in whole.indices {
            for bit in 0..<8 {
                var changed = whole
                changed[place] ^= 1 << UInt8(bit)
                #expect(SpoolFile.decoded(changed) == nil, "\(place)")
            }
        }
    }

    @Test("Bytes after the end are recognised, including another whole file.")
    func appended() {
        let whole = SpoolFile.encoded(records)
        #expect(SpoolFile.decoded(whole + [10]) == nil)
        #expect(SpoolFile.decoded(whole + whole) == nil)
    }
}
