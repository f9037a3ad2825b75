import JOSE
import Terminal
import Testing

@testable import siwad

@Suite("A decoded token")
struct DecodedTokenTests {
    @Test("is broken into lines that fit, whatever its characters are, and loses none.")
    func fits() throws {
        for name in ["名前", "a", "🚀b"].map({ String(repeating: $0, count: 100) }) {
            let parts = [#"{"kid":"k","alg":"RS256"}"#, #"{"iss":"\#(name)"}"#].map { Base64URL.encode(Array($0.utf8)) }
            let token = try CompactJWS(parsing: Array((parts.joined(separator: ".") + ".AAAA").utf8))
            let lines = DecodedToken(token).lines(style: OutputStyle(width: 80, usesColor: false))
            for line in lines { #expect(VisibleText.width(line) <= 80, "\(line)") }
            let values = lines.dropFirst(2).map { $0.dropFirst(5) }
            #expect(values.joined() == name)
        }
    }
}
