import JOSE

@testable import Spool

/// What is read from a spool file is what would be written; and no bytes, with or without a genuine last line, do harm.
enum SpoolProperties {
    static func check(_ input: [UInt8]) {
        checkRoundTrip(input)
        // No mutation finds a digest, so the last line is made for the input.
        let lines = input.count { $0 == UInt8(ascii: "\n") }
        let content = Array("siwad-spool 1\n".utf8) + input
        let digits = Array("0123456789abcdef".utf8)
        let digest = SHA256.digest(content.span).flatMap { [digits[Int($0 >> 4)], digits[Int($0 & 15)]] }
        checkRoundTrip(content + Array("end \(lines) ".utf8) + digest + [UInt8(ascii: "\n")])
        // As the body of a request that waits.
        let record = SpoolRecord(receivedAt: Int64(input.count), keyID: "key", body: input)
        require(SpoolFile.decoded(SpoolFile.encoded([record])) == [record], "any body comes back from the spool")
    }

    private static func checkRoundTrip(_ file: [UInt8]) {
        guard let records = SpoolFile.decoded(file) else { return }
        require(SpoolFile.decoded(SpoolFile.encoded(records)) == records, "what is read can be written and read again")
    }
}
