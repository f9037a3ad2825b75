// swift-tools-version: 6.2

import PackageDescription

let house: [SwiftSetting] = [
    .swiftLanguageMode(.v6),
    .enableUpcomingFeature("ExistentialAny"),
    .enableUpcomingFeature("InternalImportsByDefault"),
    .enableUpcomingFeature("MemberImportVisibility"),
    .enableUpcomingFeature("NonisolatedNonsendingByDefault"),
    .treatAllWarnings(as: .error),
]

/// A target of siwad, compiled with the instrumentation. `siwad` is a link to the folder `Sources`, because a package
/// can't have sources outside its own folder.
func target(_ name: String, _ dependencies: [Target.Dependency] = []) -> Target {
    .target(name: name, dependencies: dependencies, path: "Sources/siwad/\(name)", swiftSettings: house)
}

/// Fuzzing is a package of its own, because everything in it is compiled with the instrumentation of libFuzzer and
/// AddressSanitizer. `deploy/fuzz` builds and runs it.
let package = Package(
    name: "fuzzing",
    platforms: [.macOS(.v26)],
    dependencies: [
        .package(url: "https://github.com/apple/swift-log", exact: "1.16.2"),
        .package(url: "https://github.com/apple/swift-nio", exact: "2.101.2"),
    ],
    targets: [
        .target(name: "CLibFuzzer"),
        .systemLibrary(name: "CLibPQ", path: "Sources/siwad/CLibPQ", pkgConfig: "libpq"),
        .systemLibrary(name: "COpenSSL", path: "Sources/siwad/COpenSSL", pkgConfig: "libcrypto"),
        .systemLibrary(name: "CRename", path: "Sources/siwad/CRename"),
        target("Postgres", ["CLibPQ"]),
        target("Basics"),
        target("JOSE", ["Basics", "COpenSSL"]),
        target("AppleTokens", ["Basics", "JOSE"]),
        target("SignIn", ["AppleTokens", "Basics", "JOSE"]),
        target("Webhooks", ["Basics", "JOSE"]),
        target("Telemetry", ["Basics", .product(name: "Logging", package: "swift-log")]),
        .target(
            name: "Schema",
            dependencies: ["Postgres"],
            resources: [.embedInCode("Migrations"), .embedInCode("Events"), .embedInCode("catalog.txt")],
            swiftSettings: house
        ),
        .target(
            name: "AccountStore",
            dependencies: ["AppleTokens", "Basics", "Postgres", "Schema"],
            path: "Sources/siwad/AccountStore",
            resources: [.embedInCode("Statements")],
            swiftSettings: house
        ),
        target("Spool", ["Basics", "CRename", "JOSE"]),
        target("Ingest", ["AccountStore", "AppleTokens", "Basics", "JOSE", "Postgres", "Spool", "Telemetry"]),
        // The connections of NotificationServer without the listening part, which would add TLS and a web framework to
        // the build.
        .target(
            name: "HTTPConnection",
            dependencies: [
                "AppleTokens",
                "Basics",
                "Ingest",
                "JOSE",
                "Telemetry",
                .product(name: "NIOCore", package: "swift-nio"),
                .product(name: "NIOHTTP1", package: "swift-nio"),
                .product(name: "NIOTLS", package: "swift-nio"),
            ],
            path: "Sources/siwad/NotificationServer",
            sources: ["Connection"],
            swiftSettings: house
        ),
        // The answers of Apple's token endpoint without the client, which would add an HTTP client to the build.
        .target(
            name: "TokenAnswers",
            dependencies: ["Basics", "JOSE"],
            path: "Sources/siwad/WebClient/Tokens",
            sources: ["TokenAnswer.swift"],
            swiftSettings: house
        ),
        .executableTarget(
            name: "Fuzz",
            dependencies: [
                "AppleTokens",
                "Basics",
                "CLibFuzzer",
                "HTTPConnection",
                "Ingest",
                "JOSE",
                "SignIn",
                "Spool",
                "Telemetry",
                "TokenAnswers",
                .product(name: "NIOCore", package: "swift-nio"),
                .product(name: "NIOEmbedded", package: "swift-nio"),
                .product(name: "NIOHTTP1", package: "swift-nio"),
                .product(name: "NIOTLS", package: "swift-nio"),
            ],
            swiftSettings: house
        ),
    ]
)
