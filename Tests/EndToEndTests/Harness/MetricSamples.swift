/// The metrics of a daemon at one time, by name and labels as it prints them.
struct MetricSamples {
    private var values: [String: Double] = [:]

    init(_ addresses: DaemonProcess.Addresses) async throws {
        let page = try await Web.get(addresses.operations + "/metrics").body
        for line in page.split(separator: "\n") where !line.hasPrefix("#") {
            guard let space = line.lastIndex(of: " ") else { continue }
            values[String(line[..<space])] = Double(line[space...].dropFirst())
        }
    }

    subscript(name: String) -> Double? { values[name] }

    /// The samples of a metric with one label, by its value.
    func byLabel(_ metric: String) -> [String: Double] {
        var found: [String: Double] = [:]
        for (name, value) in values where name.hasPrefix("\(metric){") {
            found[String(name.split(separator: "\"")[1])] = value
        }
        return found
    }
}
