#!/bin/sh
# Generates the Go code of runtime.proto with the plugins that go.mod names. Needs protoc (Debian:
# protobuf-compiler). The file is named from api/ on: its name is unique among all that a program links.
set -e
gen_go="$(go tool -n protoc-gen-go)"
gen_grpc="$(go tool -n protoc-gen-go-grpc)"
cd ../..
exec protoc -I . \
	--plugin=protoc-gen-go="$gen_go" --plugin=protoc-gen-go-grpc="$gen_grpc" \
	--go_out=. --go_opt=paths=source_relative \
	--go-grpc_out=. --go-grpc_opt=paths=source_relative \
	runtime/v1alpha1/runtime.proto
