import Terminal
import Testing

@testable import siwad

@Suite("Options of endpoints")
struct EndpointOptionsTests {
    @Test("A list of retries without a duration is refused with what to write.", arguments: ["", ",", ",,"])
    func emptyRetries(text: String) async {
        for words in [["add", "shop", "--url", "https://shop.example.com/"], ["edit", "shop"]] {
            let command = ["endpoints"] + words + ["--retries", text, "--note", "why"]
            let result = await siwadCommand(command)
            #expect(result.status == .usage)
            let advice = "siwad: --retries: write durations such as 5s,5m,30m, or none for a single attempt"
            #expect(result.errors.hasPrefix(advice), "\(result.errors)")
        }
    }
}
