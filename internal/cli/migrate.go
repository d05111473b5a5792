package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	berthv1 "berth/api/berth/v1"
	"berth/internal/cli/connection"
	"berth/internal/cli/streaming"
	"berth/internal/config"
	"berth/internal/config/check"
	"berth/internal/doctor"
	"berth/internal/migrate"
)

// migration is what the flags of migrate say.
type migration struct {
	file, containers, dir, root string
	kubelet                     string
	dryRun, revert, noImages    bool
	address                     bool // --address is given
}

func (a *app) migrateCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "migrate",
		Short: "Bring this node here from containerd or CRI-O, or back",
		Args:  arguments(cobra.NoArgs),
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	var fromContainerd, fromCRIO migration
	containerd := &cobra.Command{
		Use:   "containerd",
		Short: "Take over containerd's configuration and images",
		Long: `Translate containerd's configuration into a file of config.d beside Berth's own, and its old tables of
registries into certs.d, say of each key that is not translated why, and import the images of its content store
without the network. containerd and its files stay as they are. What is written is recorded, and --revert puts
everything back.

Where berthd runs, it gets the images at once. Where it does not, archives of them are put where it looks for them
when it starts (image.preload_dir). containerd may run or not.`,
		Example: `  berth migrate containerd --dry-run
  berth migrate containerd
  berth migrate containerd --revert`,
		Args: arguments(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			m := &fromContainerd
			m.address = cmd.Flags().Changed("address") || os.Getenv("BERTH_ADDRESS") != ""
			return a.migrate(cmd.Context(), m, "containerd", func() (*migrate.Plan, error) {
				return migrate.FromContainerd(m.file, m.dir)
			})
		},
	}
	crio := &cobra.Command{
		Use:   "crio",
		Short: "Take over CRI-O's configuration",
		Long: `Translate CRI-O's configuration, and the mirrors of registries.conf, into a file of config.d beside Berth's
own and into certs.d, and say of each key that is not translated why. CRI-O and its files stay as they are. What is
written is recorded, and --revert puts everything back. CRI-O keeps no layers as they were pulled, so that images are
pulled again: the command lists them.`,
		Example: `  berth migrate crio --dry-run`,
		Args:    arguments(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			m := &fromCRIO
			m.address = cmd.Flags().Changed("address") || os.Getenv("BERTH_ADDRESS") != ""
			return a.migrate(cmd.Context(), m, "crio", func() (*migrate.Plan, error) {
				return migrate.FromCRIO(m.file, m.containers, m.dir)
			})
		},
	}
	for _, c := range []struct {
		cmd     *cobra.Command
		m       *migration
		file    string
		runtime string
	}{
		{containerd, &fromContainerd, migrate.ContainerdConfig, "containerd"},
		{crio, &fromCRIO, migrate.CRIOConfig, "CRI-O"},
	} {
		flags := c.cmd.Flags()
		flags.StringVar(&c.m.file, "config", c.file, c.runtime+"'s configuration")
		flags.StringVar(&c.m.dir, "to", migrate.DefaultDir, "directory of Berth's configuration")
		flags.StringVar(&c.m.kubelet, "kubelet-config", "",
			"a kubelet's configuration that gets Berth's socket; without it the commands for that are printed")
		flags.BoolVar(&c.m.dryRun, "dry-run", false, "write nothing, and print what would be written")
		flags.BoolVar(&c.m.revert, "revert", false, "put back what was written")
		c.cmd.MarkFlagsMutuallyExclusive("dry-run", "revert")
	}
	containerd.Flags().StringVar(&fromContainerd.root, "root", "",
		"containerd's root (by default as its configuration says)")
	containerd.Flags().BoolVar(&fromContainerd.noImages, "no-images", false, "import no images")
	crio.Flags().StringVar(&fromCRIO.containers, "containers", "/etc/containers",
		"directory of registries.conf, policy.json and storage.conf")
	cmd.AddCommand(containerd, crio)
	return cmd
}

// migrate translates, writes, imports, checks, and says what is to be done next.
func (a *app) migrate(ctx context.Context, m *migration, id string, translate func() (*migrate.Plan, error)) error {
	record, err := migrate.Open(m.dir, id)
	if err != nil {
		return err
	}
	if m.revert {
		return a.revert(record, id)
	}
	plan, err := translate()
	if err != nil {
		return err
	}
	store := &migrate.Store{Root: plan.Store, Sandbox: plan.Sandbox}
	if m.root != "" {
		store.Root = m.root
	}
	var images []*migrate.Image
	if id == "containerd" && !m.noImages {
		if images, err = a.containerdImages(ctx, store, plan); err != nil {
			return err
		}
		plan.Pin(images)
	}
	loaded, err := plan.Finish()
	if err != nil {
		return fmt.Errorf("the translated configuration is not valid: %w", err)
	}
	files := plan.Files
	if m.kubelet != "" {
		file, err := migrate.KubeletFile(m.kubelet, loaded.Address)
		if err != nil {
			return err
		}
		files = append(files, file)
	}
	if m.dryRun {
		a.printFiles(files)
	} else {
		changes := migrate.Changes(files)
		if err := record.Apply(m.dir, files); err != nil {
			return err
		}
		if err := record.WriteReport(plan); err != nil {
			return err
		}
		for _, path := range changes {
			fmt.Fprintf(a.out, "wrote %s\n", path)
		}
		if len(changes) == 0 {
			fmt.Fprintln(a.out, "the configuration is as it was")
		}
	}
	a.printNotes(plan, record.ReportPath(), m.dryRun)
	importErr := a.importImages(ctx, m, store, images, loaded.Config, record)
	bad := a.examine(ctx, m, loaded.Config)
	if !m.dryRun {
		a.printNext(m, id, plan, loaded.Config)
	}
	if importErr != nil {
		return importErr
	}
	if bad {
		return &streaming.ExitError{Code: exitError}
	}
	return nil
}

func (a *app) revert(record *migrate.Record, id string) error {
	if record.Empty() {
		fmt.Fprintf(a.out, "there is nothing of `berth migrate %s` to put back\n", id)
		return nil
	}
	done, err := record.Revert()
	for _, line := range done {
		fmt.Fprintln(a.out, line)
	}
	if err != nil {
		return err
	}
	fmt.Fprintf(a.out, `Images that were imported stay, until "berth rmi --unused" removes them. Then:
  systemctl disable --now berthd berth-keeper
  systemctl enable --now %s
  systemctl restart kubelet   # with its containerRuntimeEndpoint as it was
`, id)
	return nil
}

// containerdImages are those of a containerd that runs or that does not.
func (a *app) containerdImages(ctx context.Context, store *migrate.Store,
	plan *migrate.Plan) ([]*migrate.Image, error) {
	names, others, err := store.Names()
	if errors.Is(err, migrate.ErrRunning) {
		var asked error
		if names, asked = connection.ContainerdImages(ctx, plan.Socket); asked != nil {
			return nil, fmt.Errorf("%w; %w: stop it, or let this command reach it", err, asked)
		}
	} else if err != nil {
		return nil, err
	}
	for namespace, n := range others {
		fmt.Fprintf(a.out, "%d images in containerd's namespace %s are not the kubelet's, and stay\n", n, namespace)
	}
	return store.Images(ctx, names)
}

func (a *app) printFiles(files []migrate.File) {
	for _, f := range files {
		if f.Mode == 0o600 {
			fmt.Fprintf(a.out, "would write %s, which has secrets\n\n", f.Path)
			continue
		}
		fmt.Fprintf(a.out, "would write %s:\n\n%s\n", f.Path, f.Data)
	}
}

// printNotes prints what somebody has to look at.
func (a *app) printNotes(plan *migrate.Plan, report string, dryRun bool) {
	counts := map[migrate.Fate]int{}
	for _, n := range plan.Notes {
		counts[n.Fate]++
	}
	fmt.Fprintf(a.out, "keys of %s: %d translated, %d needless, %d to look at", plan.Runtime, counts[migrate.Translated],
		counts[migrate.Needless], counts[migrate.Left])
	if !dryRun {
		fmt.Fprintf(a.out, "; all are in %s", report)
	}
	fmt.Fprintln(a.out)
	for _, n := range plan.Notes {
		if n.Fate == migrate.Left {
			fmt.Fprintf(a.out, "  %s\n      %s\n", n.Key, n.Text)
		}
	}
}

// importImages gives images to berthd, or puts archives of them where it looks for them when it starts.
func (a *app) importImages(ctx context.Context, m *migration, store *migrate.Store, images []*migrate.Image,
	cfg *config.Config, record *migrate.Record) error {
	if len(images) == 0 {
		return nil
	}
	address := a.address
	if !m.address {
		address = cfg.Address
	}
	conn, err := connection.Dial(ctx, address)
	if err == nil {
		defer conn.Close()
	} else if !m.dryRun && cfg.Image.PreloadDir == "" {
		return fmt.Errorf("no berthd answers, and there is no image.preload_dir: %w", err)
	}
	var errs []error
	imported, there, verb := 0, 0, "imported"
	if conn == nil {
		verb = "packed"
	}
	for _, img := range images {
		if img.Missing != "" {
			errs = append(errs, fmt.Errorf("%s has to be pulled again: %s", img, img.Missing))
			continue
		}
		if m.dryRun {
			fmt.Fprintf(a.out, "would import %s (%d bytes)\n", img, img.Bytes)
			continue
		}
		var has bool
		if conn != nil {
			has, err = a.give(ctx, conn, store, img)
		} else {
			has, err = archiveImage(ctx, store, img, cfg.Image.PreloadDir, record)
		}
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case err != nil:
			errs = append(errs, fmt.Errorf("import %s: %w", img, err))
		case has:
			there++
		default:
			imported++
			fmt.Fprintf(a.out, "%s %s\n", verb, strings.Join(append([]string{img.Digest.String()}, img.Names...), " "))
		}
	}
	if !m.dryRun {
		fmt.Fprintf(a.out, "images: %d %s, %d there already, %d not\n", imported, verb, there, len(errs))
		if conn == nil {
			fmt.Fprintf(a.out, "berthd does not run: it imports the images from %s when it starts\n", cfg.Image.PreloadDir)
		}
	}
	return errors.Join(errs...)
}

// give sends an image to berthd, unless it has the image.
func (a *app) give(ctx context.Context, conn *connection.Connection, store *migrate.Store,
	img *migrate.Image) (has bool, err error) {
	for _, name := range img.Names {
		status, err := conn.Images.ImageStatus(ctx, &cri.ImageStatusRequest{Image: &cri.ImageSpec{Image: name}})
		if err != nil {
			return false, connection.Plain(err)
		}
		have := slices.ContainsFunc(status.GetImage().GetRepoDigests(), func(d string) bool {
			return strings.HasSuffix(d, "@"+img.Digest.String())
		})
		if has = have; !has {
			break
		}
		if img.Pinned && !status.GetImage().GetPinned() {
			if _, err := conn.Pulls.Pin(ctx, &berthv1.PinRequest{Image: name, Pinned: true}); err != nil {
				return true, connection.Plain(err)
			}
		}
	}
	if has {
		return true, nil
	}
	r, w := io.Pipe()
	go func() { w.CloseWithError(store.WriteArchive(ctx, w, img)) }()
	_, err = load(ctx, conn.Pulls, r, img.Pinned)
	r.CloseWithError(context.Canceled)
	return false, err
}

// archiveImage writes an image for the next start of berthd, unless that is done. The name of an archive is that
// of its image's digest, so that a whole one need not be written again.
func archiveImage(ctx context.Context, store *migrate.Store, img *migrate.Image, dir string,
	record *migrate.Record) (has bool, err error) {
	path := filepath.Join(dir, "containerd-"+img.Digest.Encoded()+".tar")
	if _, err := os.Stat(path); err == nil {
		return true, nil
	}
	if err := record.AddArchive(path); err != nil {
		return false, err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return false, err
	}
	partial := path + ".partial" // berthd passes over such names
	file, err := os.OpenFile(partial, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return false, err
	}
	err = store.WriteArchive(ctx, file, img)
	if err = errors.Join(err, file.Close()); err == nil {
		err = os.Rename(partial, path)
	}
	if err != nil {
		return false, errors.Join(err, os.Remove(partial))
	}
	return false, nil
}

// examine says what of the configuration and of the machine cannot work.
func (a *app) examine(ctx context.Context, m *migration, cfg *config.Config) (bad bool) {
	if !m.dryRun || cfg.HostsDir != filepath.Join(m.dir, "certs.d") {
		if err := check.Node(cfg); err != nil {
			for line := range strings.Lines(err.Error()) {
				fmt.Fprintf(a.out, "check: %s\n", strings.TrimSpace(line))
			}
		}
	}
	findings := doctor.Examine(ctx, doctor.Config{
		Socket: cfg.Address, Root: cfg.Root, State: cfg.State, CNIConfDir: cfg.Network.CNIConfDir,
		ContainerdVersion: connection.ContainerdVersion,
	})
	var worth []doctor.Finding
	for _, f := range findings {
		// No daemon runs yet, and none has to.
		if f.Level != doctor.Good && f.Subject != "socket" && f.Subject != "container metrics" {
			worth = append(worth, f)
			bad = bad || f.Level == doctor.Bad
		}
	}
	if err := a.printFindings(worth); err != nil {
		return true
	}
	return bad
}

func (a *app) printNext(m *migration, id string, plan *migrate.Plan, cfg *config.Config) {
	fmt.Fprintf(a.out, "\nNext, on a node that is drained (docs/migrating.md):\n  systemctl disable --now %s\n"+
		"  systemctl enable berthd && systemctl restart berthd\n", id)
	for _, line := range migrate.KubeletCommands(plan.Socket, cfg.Address, m.kubelet) {
		fmt.Fprintln(a.out, "  "+line)
	}
}
