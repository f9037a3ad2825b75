// swift-tools-version: 6.2

import PackageDescription

/// Fuzzing is a package of its own: everything in it is compiled with the instrumentation of libFuzzer and
/// AddressSanitizer, and nothing of it belongs into a build of siwad. `deploy/fuzz` builds and runs it.
let package = Package(
    name: "fuzzing",
    platforms: [.macOS(.v26)],
    dependencies: [.package(name: "siwad", path: "../..")],
    targets: [
        .target(name: "CLibFuzzer"),
        .executableTarget(
            name: "Fuzz",
            dependencies: [
                "CLibFuzzer",
                .product(name: "AppleNotifications", package: "siwad"),
                .product(name: "JOSE", package: "siwad"),
                .product(name: "Spool", package: "siwad"),
            ],
            swiftSettings: [
                .swiftLanguageMode(.v6),
                .enableUpcomingFeature("ExistentialAny"),
                .enableUpcomingFeature("InternalImportsByDefault"),
                .enableUpcomingFeature("MemberImportVisibility"),
                .treatAllWarnings(as: .error),
            ]
        ),
    ]
)
