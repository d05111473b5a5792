// Stargz serves the stargz snapshotter, as containerd-stargz-grpc does. That program is a module of its own, which is
// not published; this one has the part of it that the tests use, of the same libraries: the gRPC service of snapshots,
// and a CRI image service that takes the credentials of pulls and hands them on to the runtime's.
//
//	stargz serve ROOT SOCKET NAME=HOST:PORT [IMAGE-SERVICE RUNTIME-SOCKET]
//
// The registry NAME is read at HOST:PORT, over plain HTTP. With the two last, it serves the CRI's image service at IMAGE-SERVICE, and forwards the calls to RUNTIME-SOCKET.
//
//	stargz convert TAR LAYER
//
// makes a layer of the format eStargz of a tar, and prints the digests of its table of contents and of its tar.
package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"strings"
	"syscall"

	snapshotsapi "github.com/containerd/containerd/api/services/snapshots/v1"
	"github.com/containerd/containerd/v2/contrib/snapshotservice"
	"github.com/containerd/stargz-snapshotter/estargz"
	"github.com/containerd/stargz-snapshotter/fs/config"
	"github.com/containerd/stargz-snapshotter/service"
	crikeychain "github.com/containerd/stargz-snapshotter/service/keychain/cri"
	"github.com/containerd/stargz-snapshotter/service/resolver"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func main() {
	err := fmt.Errorf("usage: stargz serve ROOT SOCKET NAME=HOST:PORT [IMAGE-SERVICE RUNTIME-SOCKET], or stargz convert TAR LAYER")
	switch args := os.Args; {
	case len(args) == 4 && args[1] == "convert":
		err = convert(args[2], args[3])
	case (len(args) == 5 || len(args) == 7) && args[1] == "serve":
		err = serve(context.Background(), args[2:])
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "stargz:", err)
		os.Exit(1)
	}
}

func serve(ctx context.Context, args []string) error {
	root, socket := args[0], args[1]
	name, address, _ := strings.Cut(args[2], "=")
	failed := make(chan error, 2)
	var options []service.Option
	if len(args) == 5 {
		connect := func() (cri.ImageServiceClient, error) {
			conn, err := grpc.NewClient("unix://"+args[4], grpc.WithTransportCredentials(insecure.NewCredentials()))
			if err != nil {
				return nil, err
			}
			return cri.NewImageServiceClient(conn), nil
		}
		credential, images := crikeychain.NewCRIKeychain(ctx, connect)
		options = append(options, service.WithCredsFuncs(credential))
		server := grpc.NewServer()
		cri.RegisterImageServiceServer(server, images)
		if err := listen(server, args[3], failed); err != nil {
			return err
		}
	}
	// Neither prefetches nor reads ahead: what the registry has sent is what was asked for.
	var cfg service.Config
	cfg.Config = config.Config{NoPrefetch: true, NoBackgroundFetch: true, NoPrometheus: true}
	cfg.Config.BlobConfig = config.BlobConfig{ChunkSize: 64 << 10, ForceSingleRangeMode: true}
	cfg.ResolverConfig.Host = map[string]resolver.HostConfig{
		name: {Mirrors: []resolver.MirrorConfig{{Host: address, Insecure: true}}},
	}
	snapshotter, err := service.NewStargzSnapshotterService(ctx, root, &cfg, options...)
	if err != nil {
		return err
	}
	server := grpc.NewServer()
	snapshotsapi.RegisterSnapshotsServer(server, snapshotservice.FromSnapshotter(snapshotter))
	if err := listen(server, socket, failed); err != nil {
		return err
	}
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM, syscall.SIGINT)
	select {
	case err := <-failed:
		return err
	case <-stop:
		server.Stop()
		return snapshotter.Close()
	}
}

// convert makes an eStargz layer with chunks of 64 KiB.
func convert(from, to string) error {
	tar, err := os.Open(from)
	if err != nil {
		return err
	}
	defer tar.Close()
	info, err := tar.Stat()
	if err != nil {
		return err
	}
	blob, err := estargz.Build(io.NewSectionReader(tar, 0, info.Size()), estargz.WithChunkSize(64<<10))
	if err != nil {
		return err
	}
	defer blob.Close()
	out, err := os.Create(to)
	if err != nil {
		return err
	}
	if _, err := io.Copy(out, blob); err != nil {
		return err
	}
	fmt.Println(blob.TOCDigest(), blob.DiffID())
	return out.Close()
}

func listen(server *grpc.Server, socket string, failed chan<- error) error {
	if err := os.Remove(socket); err != nil && !os.IsNotExist(err) {
		return err
	}
	l, err := net.Listen("unix", socket)
	if err != nil {
		return err
	}
	go func() { failed <- server.Serve(l) }()
	return nil
}
